"""The errors of the pipeline.

    PipelineError
    ├── SparkMissing    (ImportError) Spark or Java cannot be found
    ├── InvalidSetting   (ValueError) an option of the source or sink makes no sense
    ├── DataLost        records that a query has to read are gone
    ├── Undecodable     (ValueError) a payload does not fit the schema
    └── PublishFailed   (OSError) results could not be published

Spark's workers import these for each task, so they are no `CallboardError`: that root would
load the actors.
"""


class PipelineError(Exception):
    """Root of all errors of the pipeline."""


class SparkMissing(PipelineError, ImportError):
    """Spark, or a Java that runs it, is not installed."""


class InvalidSetting(PipelineError, ValueError):
    """An option of the source, of the sink or of a command makes no sense."""


class DataLost(PipelineError):
    """Records that a query has to read are no longer, or not, in the log."""


class Undecodable(PipelineError, ValueError):
    """A payload does not fit the schema that was asked for."""


class PublishFailed(PipelineError, OSError):
    """Results could not be published; nothing of their batch is visible."""
