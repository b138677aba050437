//! What was asked and what was answered.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::Value;

/// What a request does, in the terms of Kubernetes' audit log and RBAC rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a collection.
    List,
    /// Watches a collection.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH, server-side apply included.
    Patch,
    /// Deletes one object.
    Delete,
    /// Deletes a collection.
    DeleteCollection,
    /// Names no resource: discovery, version.
    NonResource,
}

impl Verb {
    /// The verb as rules write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::NonResource => "nonresource",
        }
    }

    /// Whether it can change something.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Update | Self::Patch | Self::Delete | Self::DeleteCollection)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Target {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The resource, such as `configmaps`; the whole path for [`Verb::NonResource`].
    pub plural: String,
    /// The namespace; empty for cluster scope and for all namespaces.
    pub namespace: String,
    /// The object; empty for a collection. Of a POST, the name in its object.
    pub name: String,
    /// The subresource, such as `status`; empty for the object itself.
    pub subresource: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        for part in [&self.namespace, &self.name, &self.subresource] {
            if !part.is_empty() {
                write!(f, "/{part}")?;
            }
        }
        Ok(())
    }
}

/// One call and its answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// Counts all calls from 1.
    pub number: u64,
    /// When it came, since the cluster was made.
    pub at: Duration,
    /// Who asked. The controllers have the names of a usual cluster.
    pub user: Arc<str>,
    /// What it does.
    pub verb: Verb,
    /// What it names.
    pub target: Target,
    /// The content type of a PATCH; empty otherwise.
    pub content_type: String,
    /// The body of the request, if it has one.
    pub body: Option<Arc<Value>>,
    /// The status code of the answer; 0 if the caller got none.
    pub code: u16,
    /// The machine-readable reason of a refusal; empty for success.
    pub reason: String,
    /// The message of a refusal; empty for success.
    pub message: String,
    /// Whether the call changed what is stored.
    pub effective: bool,
    /// The name of the fault that was put in, if any.
    pub fault: Option<&'static str>,
}

impl Call {
    /// Whether the answer was success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {} {} {} -> {}", self.number, self.user, self.verb, self.target, self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        if self.effective {
            f.write_str(" (effective)")?;
        }
        match self.fault {
            Some(fault) => write!(f, " [{fault}]"),
            None => Ok(()),
        }
    }
}

/// The calls of a cluster, oldest first.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Audit {
    pub(super) calls: Vec<Call>,
}

impl Audit {
    /// The calls.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Only the calls for which `keep` holds.
    pub fn only(&self, keep: impl Fn(&Call) -> bool) -> Self {
        Self { calls: self.calls.iter().filter(|call| keep(call)).cloned().collect() }
    }

    /// Only the calls of one user.
    pub fn by(&self, user: &str) -> Self {
        self.only(|call| &*call.user == user)
    }

    /// Only the calls that changed what is stored.
    pub fn effective(&self) -> Self {
        self.only(|call| call.effective)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// `verb target` of each call, for assertions.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.calls.iter().map(|call| format!("{} {}", call.verb, call.target)).collect()
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.calls.iter().try_for_each(|call| writeln!(f, "{call}"))
    }
}
