"""A FastAPI application whose users schedule exports, with the whole HTTP API of rqsched mounted beside them."""
