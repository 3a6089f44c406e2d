//! One state, one step, the exact effects.
