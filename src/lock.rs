//! Locks around plain values.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. A panic elsewhere while the lock was held cannot leave these values half-written: each is changed by single
/// assignments and insertions, and most are hints.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
