//! State directories: one for each control plane, gone with it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{Error, binary};

/// A directory for the state of one control plane, and a lock that shows that it is in use.
///
/// The supervisor removes the directory when it ends; that covers a test process that was killed.
/// Where the supervisor itself was killed, dropping this value does, or else the next start of
/// any control plane: a lock that nobody holds belongs to a dead process.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    keep: bool,
    lock: PathBuf,
    _held: File,
}

impl StateDir {
    pub(crate) fn create(keep: bool) -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let runs = binary::home()?.join("run");
        fs::create_dir_all(&runs).map_err(Error::io(format!("creating {}", runs.display())))?;
        let all = open(&runs.join("lock"))?;
        all.lock().map_err(Error::io(format!("locking {}", runs.display())))?;
        sweep(&runs);
        let name = format!("{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = runs.join(&name);
        let lock = runs.join(name + ".lock");
        let held = open(&lock)?;
        held.lock().map_err(Error::io(format!("locking {}", lock.display())))?;
        // A leftover kept on purpose by a process of the same number.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).map_err(Error::io(format!("creating {}", path.display())))?;
        Ok(Self { path, keep, lock, _held: held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The ends of all logs, for error messages.
    pub(crate) fn log_tails(&self) -> String {
        let mut all = String::new();
        for name in ["up", "etcd", "apiserver", "controllers", "workloads"] {
            let path = self.path.join(format!("{name}.log"));
            let Ok(text) = fs::read(&path) else { continue };
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            if !lines.is_empty() {
                all += &format!("--- end of {}\n", path.display());
                all += &lines[lines.len().saturating_sub(8)..].join("\n");
                all.push('\n');
            }
        }
        all
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
        let _ = fs::remove_file(&self.lock);
    }
}

fn open(path: &Path) -> Result<File, Error> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(Error::io(format!("opening {}", path.display())))
}

/// Removes the directories of dead processes. The caller holds the lock of the whole folder.
fn sweep(runs: &Path) {
    let Ok(entries) = fs::read_dir(runs) else { return };
    for lock in entries.flatten().map(|entry| entry.path()) {
        let is_lock = lock.extension().is_some_and(|extension| extension == "lock");
        if is_lock && File::open(&lock).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(lock.with_extension(""));
            let _ = fs::remove_file(&lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_survives_a_sweep_and_the_rest_does_not() {
        let used = StateDir::create(false).unwrap();
        let runs = used.path().parent().unwrap().to_owned();
        let dead = runs.join("4000000000-0"); // no process has this number
        fs::create_dir(&dead).unwrap();
        fs::write(dead.with_extension("lock"), "").unwrap();

        let other = StateDir::create(false).unwrap();
        assert!(used.path().is_dir() && other.path().is_dir() && used.path() != other.path());
        assert!(!dead.exists() && !dead.with_extension("lock").exists());

        let (path, lock) = (used.path().to_owned(), used.lock.clone());
        drop(used);
        assert!(!path.exists() && !lock.exists());
    }
}
