"""What tests share: fakes, tiny models, loopback servers and command runners."""
