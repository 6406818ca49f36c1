"""`pearl bench`: the tests it runs, the records it prints, and the peer beside it."""
