"""The judge over HTTP: ``app`` builds it, ``serve`` runs it. See docs/judge_service.md."""
