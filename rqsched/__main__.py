"""`python -m rqsched` is the command `rqsched`."""

from rqsched.cli import main

if __name__ == "__main__":
    main()
