//! The authority's directory: small files, each complete or absent, readable by their owner only.

use super::Error;
use packetrig_sys::private_files;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub(crate) struct AuthorityFiles(PathBuf);

fn file_error(file: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let file = file.display().to_string();
    move |source| Error::File { file, source }
}

impl AuthorityFiles {
    pub(crate) fn open_directory(directory: &Path) -> Result<Self, Error> {
        private_files::create_directories(directory).map_err(file_error(directory))?;
        Ok(Self(directory.to_owned()))
    }

    /// Locks the directory against changes by this process and by other processes, until the returned file is closed.
    pub(crate) fn lock_directory(&self) -> Result<fs::File, Error> {
        // The lock has a separate file: the other files are replaced, and a lock on a replaced file protects nothing.
        let path = self.path("lock");
        let file = private_files::open_or_create(&path).map_err(file_error(&path))?;
        file.lock().map_err(file_error(&path))?;
        Ok(file)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn read_modification_time(&self) -> Option<std::time::SystemTime> {
        fs::metadata(&self.0).and_then(|facts| facts.modified()).ok()
    }

    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.path(name).is_file()
    }

    pub(crate) fn read_file(&self, name: &str) -> Result<String, Error> {
        let path = self.path(name);
        fs::read_to_string(&path).map_err(file_error(&path))
    }

    pub(crate) fn write_file(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.path(name);
        // A crash leaves the old contents or the new ones, never a part.
        private_files::replace_file(&path, text).map_err(file_error(&path))
    }

    pub(crate) fn remove_file(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        fs::remove_file(&path).map_err(file_error(&path))
    }

    /// Lists the file names that end with `ending`, without that ending, in order.
    pub(crate) fn list_names_with_ending(&self, ending: &str) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(file_error(&self.0))? {
            let name = entry.map_err(file_error(&self.0))?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(ending)).map(str::to_owned));
        }
        // `read_dir` returns the names in any order.
        names.sort();
        Ok(names)
    }
}
