"""Spark for fault tests: it starts sooner and computes less, with the same results.

Java compiles little and checks no classes, queries run without generated code, and Python
Spark's zip of it is compiled again in each process, and a query starts ten.
"""

from pathlib import Path

SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}

#: For masters, workers, drivers and executors alike.
JAVA = {
    "JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}


def installed() -> Path:
    """Return the folder of pyspark."""
    import pyspark

    return Path(pyspark.__file__).parent


def make_home(folder: Path, pyspark: Path) -> Path:
    """Make a home of Spark without that zip; pyspark may be where only another host has it."""
    folder.mkdir()
    for each in installed().iterdir():
        if each.name != "python":
            (folder / each.name).symlink_to(pyspark / each.name)
    return folder
