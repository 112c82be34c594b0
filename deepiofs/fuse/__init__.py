"""The pyfuse3 adapter between the kernel's requests and `fs.filesystem`. Nothing else imports pyfuse3."""
