"""Spaces: what may stand in a YAML file, and what a study takes from it. Pure; imports no engine.

Five ideas:

- a file with the line of each key: `space_file`;
- a schema that owns its rules, made of sections: `domains`, `sections`, `script`, `spec`, where a study's identity is;
- rules between sections, functions of a space that yield what is wrong: `rules`, and of cells `throughput`;
- a parameter is one entry (domain, algorithms, how it is set and read): `parameters`;
- a setting, from what a space or a sampler proposes to what runs, with the one story of batch sizes: `settings`.

`parsing` puts them together and reports every fault at once; `reference` prints the schema and the field reference.
"""
