"""Logs: structured, to stderr, for people on a terminal and as JSON lines elsewhere.

`configure_logging` is called once by each process (`pdd.rpc.run`, the command line); `get_logger` by every module that logs.
Records of other libraries (asyncio, aiohttp) go through the same renderer. Nothing here writes to stdout: that is for answers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_FOREIGN_LEVEL = logging.WARNING  # other libraries speak from here up


def configure_logging(level: str, service: str) -> None:
    """Log from `level` ("debug" … "critical") up, each record marked with the service's name. Raises ValueError on others."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r}: use one of debug, info, warning, error, critical")
    terminal = sys.stderr.isatty()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _mark(service),
    ]
    renderer = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    last: list[Processor] = [renderer] if terminal else [structlog.processors.format_exc_info, renderer]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    foreign: list[Processor] = [structlog.stdlib.add_logger_name, *shared]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=foreign, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, _FOREIGN_LEVEL), force=True)


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger for the module `name`; call it as `log.info("what happened", key=value)`."""
    logger: FilteringBoundLogger = structlog.get_logger(module=name)
    return logger


def _mark(service: str) -> Callable[[WrappedLogger, str, EventDict], EventDict]:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    return add
