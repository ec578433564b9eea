-- Prefect, MLflow and MLflow's users have a database each; POSTGRES_DB makes the first.
CREATE DATABASE mlflow;
CREATE DATABASE mlflow_auth;
