"""The whole stack as processes of this machine: Postgres, an S3 store, Prefect, MLflow, a worker,
tf.data service.
"""
