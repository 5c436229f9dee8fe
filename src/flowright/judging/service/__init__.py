"""The judge over HTTP: ``app`` makes it, ``serve`` runs it. See docs/judge_service.md."""
