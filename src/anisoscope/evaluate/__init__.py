"""An observation evaluated: proxies judged against their nulls, measures with intervals, and the rows of both."""
