//! The requests of a depot: each is made again until it is answered, or has failed for long enough.
//!
//! ```text
//!  put_new:  PUT If-None-Match: *  ─► 200: put     412: taken     409, 429, 5xx, no answer: again, and in doubt
//!                                      412 in doubt: ours, if the object has this put's mark
//!  parts:    begun, put, joined; of objects that are named by their digest alone
//! ```

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, GetOptions, MultipartId, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions,
};
use tapetum_drive::Env;

use super::failure::Failure;
use super::retry::{Attempts, OF_WORK, Pace};

/// The most objects of a list: some TB of packs.
const OBJECTS_MAX: usize = 1_000_000;

/// A client, as a depot needs it.
pub trait Objects: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Objects for T {}

/// The metadata that says which put an object is of (`x-amz-meta-tapetum-put`).
const MARK: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("tapetum-put"));

/// Puts an object, unless there is one of this name: then `false`.
pub async fn put_new(objects: Arc<dyn Objects>, path: Path, bytes: Bytes, pace: Pace) -> Result<bool, Failure> {
    let (mut attempts, mut is_in_doubt) = (Attempts::of(bytes.len(), pace), false);
    let mark = AttributeValue::from(format!("{:016x}", Env::system().random_u64()));
    let attributes = Attributes::from_iter([(MARK, mark.clone())]);
    loop {
        let options = PutOptions { mode: PutMode::Create, attributes: attributes.clone(), ..PutOptions::default() };
        match attempts.answer(objects.put_opts(&path, bytes.clone().into(), options)).await {
            Ok(_) => return Ok(true),
            Err(Failure::Exists) if is_in_doubt => return is_marked(&*objects, &path, &mark, pace).await,
            Err(Failure::Exists) => return Ok(false),
            Err(failure) => {
                attempts.again(failure).await?;
                is_in_doubt = true;
            }
        }
    }
}

/// Whether an object is of the put with this mark.
async fn is_marked(objects: &dyn Objects, path: &Path, mark: &AttributeValue, pace: Pace) -> Result<bool, Failure> {
    let mut attempts = Attempts::of(0, pace);
    loop {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match attempts.answer(objects.get_opts(path, options)).await {
            Ok(found) => return Ok(found.attributes.get(&MARK) == Some(mark)),
            Err(Failure::Missing) => return Ok(false),
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

/// Begins a large object, of parts. `None`: there is one of this name.
pub async fn begin_parts(objects: Arc<dyn Objects>, path: Path) -> Result<Option<Upload>, Failure> {
    if length(&*objects, &path).await?.is_some() {
        return Ok(None);
    }
    let mut attempts = Attempts::of(0, OF_WORK);
    let id = loop {
        match attempts.answer(objects.create_multipart(&path)).await {
            Ok(id) => break id,
            Err(failure) => attempts.again(failure).await?,
        }
    };
    Ok(Some(Upload { objects, path, id }))
}

/// A large object whose parts are being put.
#[derive(Clone)]
pub struct Upload {
    objects: Arc<dyn Objects>,
    path: Path,
    id: MultipartId,
}

impl Upload {
    pub async fn put_part(self, place: usize, part: Bytes) -> Result<PartId, Failure> {
        let mut attempts = Attempts::of(part.len(), OF_WORK);
        loop {
            match attempts.answer(self.objects.put_part(&self.path, &self.id, place, part.clone().into())).await {
                Ok(id) => return Ok(id),
                Err(failure) => attempts.again(failure).await?,
            }
        }
    }

    /// Joins the parts: from then on there is an object, of so many bytes.
    pub async fn complete(self, parts: Vec<PartId>, bytes: u64) -> Result<(), Failure> {
        let mut attempts = Attempts::of(bytes as usize, OF_WORK);
        loop {
            match attempts.answer(self.objects.complete_multipart(&self.path, &self.id, parts.clone())).await {
                Ok(_) => return Ok(()),
                // The answer to an earlier attempt was lost.
                Err(Failure::Missing) if length(&*self.objects, &self.path).await? == Some(bytes) => return Ok(()),
                Err(failure) => attempts.again(failure).await?,
            }
        }
    }

    pub async fn abort(self) -> Result<(), Failure> {
        Attempts::of(0, OF_WORK).answer(self.objects.abort_multipart(&self.path, &self.id)).await
    }
}

async fn length(objects: &dyn Objects, path: &Path) -> Result<Option<u64>, Failure> {
    let mut attempts = Attempts::of(0, OF_WORK);
    loop {
        match attempts.answer(objects.head(path)).await {
            Ok(meta) => return Ok(Some(meta.size)),
            Err(Failure::Missing) => return Ok(None),
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

/// All of an object.
pub async fn get(objects: Arc<dyn Objects>, path: Path, pace: Pace) -> Result<Option<Vec<u8>>, Failure> {
    let mut attempts = Attempts::of(0, pace);
    loop {
        match read(&*objects, &path, &attempts, pace).await {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(Failure::Missing) => return Ok(None),
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn read(objects: &dyn Objects, path: &Path, attempts: &Attempts, pace: Pace) -> Result<Vec<u8>, Failure> {
    let found = attempts.answer(objects.get_opts(path, GetOptions::default())).await?;
    let length = found.meta.size;
    if length > pace.object_bytes_max {
        return Err(Failure::Other(format!(
            "the server has {length} bytes by this name, and no such object has more than {}: it is none of ours",
            pace.object_bytes_max
        )));
    }
    let mut stream = found.into_stream();
    let gathered = async {
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await.transpose()? {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > length {
                break;
            }
        }
        Ok(bytes)
    };
    // A body that drips has to end as well.
    let bytes = Attempts::of(length as usize, pace).answer(gathered).await?;
    if bytes.len() as u64 != length {
        return Err(Failure::Unreachable("the answer was not as long as it said".into()));
    }
    Ok(bytes)
}

/// All objects beneath a name.
pub async fn list(objects: Arc<dyn Objects>, path: Path, pace: Pace) -> Result<Vec<ObjectMeta>, Failure> {
    let mut attempts = Attempts::of(0, pace);
    loop {
        match list_once(&*objects, &path, &attempts, usize::MAX).await {
            Err(failure) => attempts.again(failure).await?,
            listed => return listed,
        }
    }
}

/// Asks for a list: whether the bucket can be reached.
pub async fn reach(objects: Arc<dyn Objects>, path: Path) -> Result<(), Failure> {
    let mut attempts = Attempts::of(0, OF_WORK);
    loop {
        match list_once(&*objects, &path, &attempts, 1).await {
            Err(failure) => attempts.again(failure).await?,
            Ok(_) => return Ok(()),
        }
    }
}

async fn list_once(
    objects: &dyn Objects,
    path: &Path,
    attempts: &Attempts,
    count: usize,
) -> Result<Vec<ObjectMeta>, Failure> {
    let (mut listed, mut stream) = (Vec::new(), objects.list(Some(path)));
    while listed.len() < count
        && let Some(object) = attempts.answer(async { stream.next().await.transpose() }).await?
    {
        listed.push(object);
        if listed.len() > OBJECTS_MAX {
            return Err(Failure::Other(format!("the list has more than {OBJECTS_MAX} objects, or no end")));
        }
    }
    Ok(listed)
}

/// Removes an object, if it is there.
pub async fn delete(objects: Arc<dyn Objects>, path: Path, pace: Pace) -> Result<(), Failure> {
    let mut attempts = Attempts::of(0, pace);
    loop {
        match attempts.answer(objects.delete(&path)).await {
            Ok(()) | Err(Failure::Missing) => return Ok(()),
            Err(failure) => attempts.again(failure).await?,
        }
    }
}
