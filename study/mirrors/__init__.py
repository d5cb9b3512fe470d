"""Copies of the records for other programs: MLflow, TensorBoard, Optuna. All can be made again from the records."""
