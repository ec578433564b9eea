-- Prefect and MLflow have a database each; POSTGRES_DB makes the first.
CREATE DATABASE mlflow;
