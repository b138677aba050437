//! Names of finalizers, checked before anything is sent.

use std::{fmt, str::FromStr};

use crate::object::is_dns_subdomain;

/// Why a finalizer name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid finalizer name {name:?}: {rule}")]
#[non_exhaustive]
pub struct InvalidName {
    /// The refused name, cut to a readable length.
    pub name: String,
    /// The rule it breaks and what to do.
    pub rule: &'static str,
}

fn invalid(name: &str, rule: &'static str) -> InvalidName {
    InvalidName { name: name.chars().take(80).collect(), rule }
}

/// The finalizer's part after the slash: what Kubernetes calls the name of a qualified name.
fn is_qualified_name(name: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric());
    name.len() <= 63
        && ends(name.bytes().next())
        && ends(name.bytes().last())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A finalizer that may be added: `<dns subdomain>/<name>`.
///
/// The API server demands the slash on its own kinds and only warns about its absence on custom resources, so a
/// constant without one works in development and fails on the first ConfigMap; here it is refused at construction.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FinalizerName(String);

impl FinalizerName {
    /// A name, checked.
    ///
    /// # Errors
    /// [`InvalidName`] unless `name` is a DNS subdomain, a slash, and at most 63 letters, digits, `-`, `_` and `.` that
    /// start and end with a letter or digit.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = name.as_ref();
        match name.split_once('/') {
            Some((domain, rest)) if is_dns_subdomain(domain) && is_qualified_name(rest) => Ok(Self(name.to_owned())),
            _ => Err(invalid(
                name,
                "write \"<domain>/<name>\" with a domain that you control, such as \"gittrack.example.com/cleanup\"; the \
                 name has at most 63 letters, digits, '-', '_' and '.'",
            )),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the slash.
    #[must_use]
    pub fn domain(&self) -> &str {
        self.0.split_once('/').map_or("", |(domain, _)| domain)
    }
}

impl FromStr for FinalizerName {
    type Err = InvalidName;
    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl fmt::Display for FinalizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FinalizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// A finalizer that earlier versions of the operator added: removed with the current ones, never added.
///
/// It need not be qualified, but it cannot be one that Kubernetes itself acts on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LegacyName(String);

impl LegacyName {
    pub(super) fn new(name: &str) -> Result<Self, InvalidName> {
        const KUBERNETES: [&str; 4] =
            ["kubernetes", "orphan", "foregroundDeletion", "customresourcecleanup.apiextensions.k8s.io"];
        if name.is_empty() || name.len() > 317 || name.bytes().any(|b| b.is_ascii_control() || b == b' ') {
            return Err(invalid(name, "a legacy finalizer is a name that the API server has accepted"));
        }
        if KUBERNETES.contains(&name) || name.starts_with("kubernetes.io/") {
            return Err(invalid(name, "this finalizer belongs to Kubernetes and is not an operator's to remove"));
        }
        Ok(Self(name.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LegacyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c23_names_are_validated_at_construction() {
        for good in ["example.com/x", "a/b", "x.example.com/A.b_c-1", &format!("e.com/{}", "n".repeat(63))] {
            assert_eq!(FinalizerName::new(good).unwrap().as_str(), good);
        }
        let long = format!("e.com/{}", "n".repeat(64));
        for bad in
            ["", "x.example.com", "/x", "x/", "a/b/c", "UP.com/x", "e.com/-x", "e.com/x.", "e.com/ä", "a b/c", &long]
        {
            assert!(FinalizerName::new(bad).is_err(), "{bad}");
        }
        assert_eq!(FinalizerName::new("example.com/x").unwrap().domain(), "example.com");
    }

    #[test]
    fn c23_legacy_names_may_be_unqualified_but_not_those_of_kubernetes() {
        assert!(LegacyName::new("x.example.com").is_ok());
        for bad in ["", "orphan", "foregroundDeletion", "kubernetes", "kubernetes.io/pvc-protection", "a b"] {
            assert!(LegacyName::new(bad).is_err(), "{bad}");
        }
    }
}
