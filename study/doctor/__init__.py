"""What would make a study fail here, or its numbers wrong. It changes nothing.

Facts are gathered first: `asking` asks this machine, or every node of a live Ray, by `study.hosts.probe`. Then each
check of the table in `checks` judges them. A check that crashes, hangs or cannot read its facts becomes a result that
says so.
"""
