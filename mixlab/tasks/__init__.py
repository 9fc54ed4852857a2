"""One file per kind of task: how data becomes examples, which head reads them, what is measured, how to predict."""
