"""The backend "thinwire" of torchcomms. Its entry point is entry.py. This file must not need torchcomms."""
