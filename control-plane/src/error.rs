use std::{io, path::PathBuf};

use crate::Part;

/// What can go wrong with a test control plane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `go` is missing, too old, or could not be asked for its version.
    #[error("Go 1.26 or newer is needed to build the test control plane: {0}")]
    Go(String),
    /// The Go sources could not be compiled.
    #[error("building the test control plane failed (`{command}`):\n{output}")]
    Build {
        /// The command that failed.
        command: String,
        /// What it printed.
        output: String,
    },
    /// A file or process could not be handled.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried, with the path.
        doing: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The control plane did not become ready.
    #[error("the control plane did not start: {message}\n{log}")]
    Start {
        /// The last words of the supervisor.
        message: String,
        /// The ends of the logs.
        log: String,
    },
    /// The supervisor process has ended; the whole control plane is gone.
    #[error("the control plane has ended: {message}\n{log}")]
    Ended {
        /// The last words of the supervisor.
        message: String,
        /// The ends of the logs.
        log: String,
    },
    /// The supervisor refused a command, for instance to kill a part that does not run.
    #[error("`{command}` was refused: {message}")]
    Refused {
        /// The command line.
        command: String,
        /// The supervisor's answer.
        message: String,
    },
    /// This control plane was started without the part that was asked for, or in a form that
    /// can't answer.
    #[error("no answer from part `{part}`: {message}")]
    NoSuchPart {
        /// The part.
        part: Part,
        /// What is missing.
        message: String,
    },
    /// Something did not happen within the time allowed.
    #[error("not within {seconds} s: {what}")]
    TimedOut {
        /// What was waited for, with the last state seen.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A kubeconfig written by the supervisor could not be used.
    #[error("can't use {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request to the API server or to the controllers failed.
    #[error("{doing}: {source}")]
    Kube {
        /// What was tried.
        doing: String,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Error {
    /// For `map_err`: wraps an [`io::Error`] with what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// For `map_err`: wraps a [`kube::Error`] with what was being done.
    pub(crate) fn kube(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Kube { doing, source: Box::new(source) }
    }
}
