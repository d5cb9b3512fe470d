"""Spaces: what may stand in a YAML file, and what a study takes from it. Pure; imports no engine.

- `domains`, `sections`, `spec`: a schema that owns its rules, a study's identity, what is known of a script;
- `rules`: what must hold between sections, functions of a space that yield what is wrong;
- `parameters`: a parameter is one entry (domain, algorithms, how it is set and read);
- `settings`: from what a space or a sampler proposes to what runs, batch sizes and cells to be timed;
- `parsing`: a file with the line of each key, and all of its faults.
"""
