//! Public clients.
