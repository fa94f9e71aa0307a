"""Several machines: replicas of one model, spread over a Ray cluster.

A replica is a whole engine, on one GPU or on some cores; no two of them share anything. So two questions are left
to this room: which rows of a file go to which replica (`manyhands batch`, `eval` and `judge`), and which requests of
a conversation (`manyhands serve`, where its keys and values lie in one replica's memory).

    settings.py    what can be asked of a cluster
    joining.py     the one door to Ray, which is imported there and nowhere else at the top of a file

    rows.py        which rows wait, which replica has which, which are done: the rule, without Ray
    replica.py     what runs in an actor: rows come, a thread answers them, answers are fetched
    spreading.py   the actors: started, filled, replaced when they die

    affinity.py    what makes two requests one conversation, and which replica it belongs to
    router.py      the same as a request router of Ray Serve; known.py: the replicas that it may choose among
    installed.py   the distributions and weights of replicas, and in which way these differ
    forwarding.py  a request and its answer on their way between two processes
    serving.py     the door and the replicas of a server, as deployments of Ray Serve

Ray places processes, notices deaths and starts others. Which rows are done is decided here: an answer counts when it
is on the disk of the program that asked (`schema/lines.py`). A replica may die at any moment and nothing is lost but
its time.
"""
