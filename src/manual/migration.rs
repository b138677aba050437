//! # Moving an operator over
//!
//! ## From owner references to the parent
//!
//! References from children in other namespaces or from cluster scope to a namespaced parent are the ones the garbage collector
//! acts on at its next restart, so they go first, while the old operator is stopped:
//!
//! 1. Scale the old operator down.
//! 2. Strip the references. [`strip_owner`](crate::ownership::strip_owner) removes those of one UID and leaves others alone.
//! 3. Start the new one with [`Adoption::IfUnowned`](crate::custodian::Adoption): what is in the desired set and unowned is
//!    adopted, on record before it is marked.
//! 4. Adopted objects are detached at the end, not deleted. To have them deleted, let the operator go on to own them: name
//!    no policy `keep` for them and set `Adoption::Always` only if the names cannot be anybody else's.
//!
//! ## From a finalizer with a list of its own
//!
//! The old finalizer's name goes into `Builder::legacy_finalizers`: it leaves together with the new ones. Objects that the old
//! operator has created and the new one still wants are adopted as above; those it no longer wants have to be removed by the old
//! operator, since nothing on them says whose they are.
//!
//! ## To another manager name
//!
//! All keys live under the manager's domain, so a new name is a new operator: children of the old one are foreign to it. Keep
//! the name.
