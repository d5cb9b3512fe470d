"""Tables T1 to T11 of a study, as values and as text. Views: no arithmetic; imports no engine.

for table in all_tables(Results(open_study("studies/quickstart"))):
    print(table.to_markdown())
"""
