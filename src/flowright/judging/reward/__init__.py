"""A judge service as a reward, in the trainer's own process: ``adapter`` for any program, ``trl``
and ``verl`` for theirs. See docs/judge_service.md."""
