//! A depot in object storage: S3, or a server that speaks its protocol.
//!
//! 1. Small objects are put whole, under the condition that none has their name; of those who put one name, one succeeds.
//! 2. Objects of more than [`Sizes::put_max`] are put in parts if their name ends with the digest of their bytes. Of two who put such a one both may
//!    succeed, with the same bytes. It appears when its parts are joined, whole.
//! 3. Before its first put a depot makes sure that the server keeps to the condition: [`PROBE`] is put until that fails, once or twice. It stays.
//! 4. A put is not taken for another's when its own answer was lost: each has a mark, which is looked for.
//! 5. No more than one request's bytes are in memory besides the caller's: `put_max`, or a part.
//!
//! Threads: any; requests are made on one of its own ([`runner`]).

mod failure;
mod requests;
mod retry;
mod runner;
mod s3;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use object_store::path::Path;
use tapetum::backup::{Depot, DepotError, Digest, ObjectEntry};

use crate::address::BucketAddress;
use failure::Failure;
use requests::Objects;
use retry::{OF_LEASES, OF_WORK, Pace};
use runner::Runner;

/// The object by which a server is tested.
const PROBE: &str = "probe";

/// Whoever renews a lease looks at these folders, and cannot wait.
const FOLDERS_OF_LEASES: [&str; 2] = ["lease", "generations"];

fn pace(name: &str) -> Pace {
    let folder = name.split('/').next().unwrap_or_default();
    if FOLDERS_OF_LEASES.contains(&folder) { OF_LEASES } else { OF_WORK }
}

/// In bytes.
#[derive(Clone, Copy)]
struct Sizes {
    /// The largest object that is put at once.
    put_max: usize,
    /// The bytes of each part but the last; S3 wants 5 MiB at least.
    part: usize,
}

const SIZES: Sizes = Sizes { put_max: 16 << 20, part: 8 << 20 };

/// See the [module](self).
pub struct ObjectDepot {
    objects: Arc<dyn Objects>,
    address: BucketAddress,
    runner: Runner,
    sizes: Sizes,
    /// Whether the server was seen to keep to conditions.
    is_probed: Mutex<bool>,
}

impl ObjectDepot {
    /// The depot in a bucket that is there, with what the environment says of its server.
    ///
    /// # Errors
    /// If there are no credentials, or the bucket cannot be read.
    pub fn open(address: &BucketAddress) -> Result<ObjectDepot, DepotError> {
        let failed = |failure: Failure| failure.at("open", &address.to_string());
        let client = s3::client(address).map_err(failed)?;
        let depot = ObjectDepot::of(Arc::new(client.clone()), address, SIZES)?;
        depot.run(s3::find_credentials(client)).map_err(failed)?;
        depot.run(requests::reach(depot.objects.clone(), depot.path(PROBE))).map_err(failed)?;
        Ok(depot)
    }

    fn of(objects: Arc<dyn Objects>, address: &BucketAddress, sizes: Sizes) -> Result<ObjectDepot, DepotError> {
        let thread = |error: std::io::Error| Failure::Other(format!("no thread for it: {error}"));
        let runner = Runner::start().map_err(|error| thread(error).at("open", &address.to_string()))?;
        Ok(ObjectDepot { objects, address: address.clone(), runner, sizes, is_probed: Mutex::new(false) })
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        self.runner.run(work).unwrap_or_else(|| Err(Failure::Other("its thread has ended".into())))
    }

    fn path(&self, name: &str) -> Path {
        // Names and addresses are of plain characters: none is escaped.
        Path::from(self.address.key(name))
    }

    fn failed(&self, doing: &str, name: &str) -> impl FnOnce(Failure) -> DepotError {
        let (doing, place) = (doing.to_owned(), format!("{}/{name}", self.address));
        move |failure| failure.at(&doing, &place)
    }

    fn put_whole(&self, name: &str, bytes: &[u8]) -> Result<bool, Failure> {
        self.run(requests::put_new(self.objects.clone(), self.path(name), Bytes::copy_from_slice(bytes), pace(name)))
    }

    fn put_in_parts(&self, name: &str, bytes: &[u8]) -> Result<bool, Failure> {
        let begun = self.run(requests::begin_parts(self.objects.clone(), self.path(name)))?;
        let Some(upload) = begun else { return Ok(false) };
        let put = self.put_parts(&upload, bytes);
        if put.is_err() {
            // Parts that stay are the bucket's to remove, by a rule.
            let _ = self.run(upload.abort());
        }
        put.map(|()| true)
    }

    fn put_parts(&self, upload: &requests::Upload, bytes: &[u8]) -> Result<(), Failure> {
        let mut parts = Vec::new();
        for (place, part) in bytes.chunks(self.sizes.part).enumerate() {
            parts.push(self.run(upload.clone().put_part(place, Bytes::copy_from_slice(part)))?);
        }
        self.run(upload.clone().complete(parts, bytes.len() as u64))
    }

    /// Makes sure, once, that the server keeps to the condition of a put.
    fn probe(&self) -> Result<(), Failure> {
        let mut is_probed = self.is_probed.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_probed {
            return Ok(());
        }
        let put = || self.put_whole(PROBE, b"An object of this name is put again and again, which must fail.\n");
        if put()? && put()? {
            self.run(requests::delete(self.objects.clone(), self.path(PROBE), OF_WORK))?;
            return Err(Failure::Unconditional);
        }
        *is_probed = true;
        Ok(())
    }
}

impl Depot for ObjectDepot {
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool, DepotError> {
        let is_large = bytes.len() > self.sizes.put_max && name.ends_with(&Digest::of(bytes).to_string());
        let put = self.probe().and_then(|()| match is_large {
            true => self.put_in_parts(name, bytes),
            false => self.put_whole(name, bytes),
        });
        put.map_err(self.failed("write", name))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, DepotError> {
        self.run(requests::get(self.objects.clone(), self.path(name), pace(name))).map_err(self.failed("read", name))
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectEntry>, DepotError> {
        let listed = self.run(requests::list(self.objects.clone(), self.path(folder), pace(folder)));
        let listed = listed.map_err(self.failed("list", folder))?;
        let beneath = self.path(folder);
        let mut entries: Vec<ObjectEntry> = listed
            .into_iter()
            .filter_map(|object| {
                // As in a folder: what lies deeper is none of its objects.
                let mut parts = object.location.prefix_match(&beneath)?;
                let (name, None) = (parts.next()?, parts.next()) else { return None };
                Some(ObjectEntry { name: format!("{folder}/{}", name.as_ref()), bytes: object.size })
            })
            .collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn delete(&self, name: &str) -> Result<(), DepotError> {
        self.run(requests::delete(self.objects.clone(), self.path(name), pace(name)))
            .map_err(self.failed("remove", name))
    }

    fn clean(&self) -> Result<(), DepotError> {
        // A put leaves nothing, and parts that nobody joins are the bucket's to remove.
        Ok(())
    }

    fn place(&self) -> String {
        self.address.to_string()
    }
}
