"""What a hold-up study comes to: verdict, diagnosis, certificate and export, from its records alone. No engine."""
