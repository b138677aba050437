//! What the API server does for each verb.

mod create;
mod delete;
mod prepare;
mod read;
mod update;
pub(super) mod watch;

pub(super) use self::delete::CLEANUP;
