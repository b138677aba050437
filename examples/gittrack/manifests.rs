//! Reading a directory of manifests.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use kube_custody::custodian::{Desired, DesiredError};

#[derive(Debug)]
pub enum Error {
    /// The path leads out of the checkout, which a tenant must not be able to do.
    Outside(String),
    Io(PathBuf, io::Error),
    Manifest(PathBuf, Box<DesiredError>),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Outside(path) => write!(f, "path {path:?} leads out of the checkout"),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Manifest(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// Every object in the `*.yaml` and `*.yml` files of directory `path` below `repo`, subdirectories included.
///
/// One unreadable file fails the whole directory: what is in it is not known, so nothing may be pruned.
pub fn read(repo: &Path, path: &str) -> Result<Desired, Error> {
    let inside = |path: PathBuf| -> Result<PathBuf, Error> {
        let real = path.canonicalize().map_err(|e| Error::Io(path.clone(), e))?;
        if real.starts_with(repo) { Ok(real) } else { Err(Error::Outside(path.display().to_string())) }
    };
    let mut desired = Desired::new();
    let mut directories = vec![inside(repo.join(path.trim_start_matches('/')))?];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).map_err(|e| Error::Io(directory.clone(), e))?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.map_err(|e| Error::Io(directory.clone(), e))?.path());
        }
        paths.sort();
        for path in paths {
            if path.is_dir() && !path.is_symlink() {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
                let path = inside(path)?;
                let text = fs::read_to_string(&path).map_err(|e| Error::Io(path.clone(), e))?;
                desired.push_yaml(&text).map_err(|e| Error::Manifest(path, Box::new(e)))?;
            }
        }
    }
    Ok(desired)
}
