//! Reads secret keys from files. They are not arguments, because every user of a machine can read command lines.

use crate::error::Error;
use packetrig_sys::private_files;
use std::path::Path;
use std::str::FromStr;

/// Size limit of a file with a key.
const MAX_KEY_FILE_BYTES: u64 = 256;

/// Reads the key of `option` from a file that only this user and root may read. If the user has given the key itself in
/// place of the file, the error does not repeat it.
pub(crate) fn read_secret_key<K: FromStr<Err = String>>(option: &str, path: &Path) -> Result<K, Error> {
    let name = path.display();
    if name.to_string().parse::<K>().is_ok() {
        let why = format!("{option} takes a file: on the command line every user can read the key");
        return Err(Error::Usage(format!("{why}; write it to a file of mode 600 and give its name")));
    }
    let text = private_files::read_secret_file(path, MAX_KEY_FILE_BYTES)
        .map_err(|why| Error::Usage(format!("cannot read the key of {option} in {name}: {why}")))?;
    text.trim().parse().map_err(|why| Error::Usage(format!("{name}: {why}")))
}
