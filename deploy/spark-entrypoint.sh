#!/bin/bash
# What a container of Containerfile.spark does: `driver` and `executor` are what Spark tells pods of Kubernetes, with the
# rest in variables; `master` and `worker` are for a standalone cluster; all else is run as it stands.
set -euo pipefail
role=${1:-}
if [[ $role =~ ^(driver|executor|master|worker)$ ]]; then shift; else role=; fi
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
init=()
command -v tini >/dev/null && init=(tini -s --)
case $role in
  driver)
    set -- "$SPARK_HOME/bin/spark-submit" \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
      --deploy-mode client "$@"
    ;;
  executor)
    # Options come one in each variable, and in their order.
    mapfile -t options < <(env | sed -n 's/^SPARK_JAVA_OPT_\([0-9]*\)=/\1 /p' | sort -n | cut -d' ' -f2-)
    set -- "$java" "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  master) set -- "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master "$@" ;;
  worker) set -- "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker "$@" ;;
esac
exec "${init[@]}" "$@"
