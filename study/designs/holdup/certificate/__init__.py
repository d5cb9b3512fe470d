"""The result of a hold-up study: verdict, diagnosis, certificate and export, from its records alone. No engine."""
