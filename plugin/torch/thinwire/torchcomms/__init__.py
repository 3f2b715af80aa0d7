"""The backend "thinwire" of torchcomms. Its entry point is entry.py: this file is loaded without torchcomms,
too."""
