"""A judge service as a reward in the trainer's own process: ``adapter`` for any trainer, ``trl``
and ``verl`` for theirs. See docs/judge_service.md and docs/other_trainers.md."""
