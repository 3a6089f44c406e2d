//! Calls: what the builders of all operations share.
//!
//! A method such as [`Client::put`](crate::Client::put) returns a builder. Its methods set options,
//! and `.await` makes the call. Until then nothing happens.

use leasehold_protocol::path::{NodePath, PathError};

/// A path as the application gave it. The call reports a bad one, so that a builder cannot fail.
pub(crate) type GivenPath = Result<NodePath, PathError>;

/// Parses a path. This is the only part of a call that is compiled once for each type of path.
pub(crate) fn given(path: impl TryInto<NodePath, Error: Into<PathError>>) -> GivenPath {
    path.try_into().map_err(Into::into)
}
