-- Prefect, MLflow and MLflow's users have a database each; POSTGRES_DB creates the first.
CREATE DATABASE mlflow;
CREATE DATABASE mlflow_auth;
