"""The protocol of a hold-up study: stages, decisions, verdict. Pure: records in, next trials out."""
