"""What several tests need: servers, capabilities, loops. Import as ``support.servers``."""
