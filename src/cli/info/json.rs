//! A frame for programs. What the fields mean, the command's help says; it must agree.

use std::path::Path;

use serde_json::{Value, json};

use super::{Facts, Failure, Specials};
use crate::cli::check::as_value;
use crate::cli::frames;
use crate::format::Layout;
use crate::format::object::Object;
use crate::format::registry::FilterId;

pub(super) fn failure(frame: &Path, failure: &Failure) -> Value {
    json!({ "frame": frames::shown(frame).to_string_lossy(), "error": failure.0 })
}

pub(super) fn frame(facts: &Facts<'_>) -> Value {
    let header = &facts.header;
    let codec = facts.codec();
    let pipeline = header.filters.iter().map(|id| FilterId(*id)).zip(header.filters_meta);
    let filters = pipeline.filter(|(id, _)| *id != FilterId::NONE);
    json!({
        "frame": facts.inspection.path().to_string_lossy(),
        "layout": match facts.inspection.layout() { Layout::Contiguous => "cframe", Layout::Sparse => "sframe" },
        "version": header.version,
        "nbytes": header.nbytes,
        "cbytes": header.cbytes,
        "ratio": facts.ratio(),
        "file_size": facts.file_size(),
        "typesize": header.typesize,
        "chunksize": u32::try_from(header.chunksize).ok(),
        "blocksize": header.blocksize,
        "varying_chunks": header.varying_chunks,
        "vl_blocks": header.vl_blocks,
        "codec": { "id": codec.0, "name": codec.name(), "meta": header.codec_meta, "level": header.clevel },
        "filters": filters.map(|(id, meta)| json!({ "id": id.0, "name": id.name(), "meta": meta })).collect::<Vec<_>>(),
        "splitmode": split_mode(header.split_mode),
        "dictionary": header.use_dict,
        "threads": { "compress": header.nthreads_compress, "decompress": header.nthreads_decompress },
        "chunks": chunks(facts),
        "stored": stored(facts),
        "array": array(facts),
        "object": Object::find(facts.inspection.header().metalayers()).map(Object::class),
        "metalayers": facts.metalayers.iter().map(|layer| layer.json()).collect::<Vec<_>>(),
        "vlmetalayers": facts.vlmetalayers.as_ref().map(|layers| layers.iter().map(|layer| layer.json()).collect::<Vec<_>>()),
        "findings": facts.findings.iter().map(as_value).collect::<Vec<_>>(),
        "findings_left_out": facts.left_out,
    })
}

fn split_mode(mode: u8) -> &'static str {
    match mode {
        1 => "always",
        2 => "never",
        3 => "auto",
        _ => "forward_compat",
    }
}

fn chunks(facts: &Facts<'_>) -> Option<Value> {
    let entries = facts.index.as_ref()?;
    let Specials { zeros, nan, uninit } = entries.special;
    Some(json!({ "count": entries.count, "stored": entries.stored, "zeros": zeros, "nan": nan, "uninit": uninit }))
}

fn stored(facts: &Facts<'_>) -> Option<Value> {
    let stored = facts.stored.as_ref()?;
    let Specials { zeros, nan, uninit } = stored.special;
    Some(json!({
        "cbytes": stored.cbytes,
        "smallest": stored.sizes.map(|(smallest, _)| smallest),
        "largest": stored.sizes.map(|(_, largest)| largest),
        "copies": stored.copies,
        "repeated": stored.repeated,
        "zeros": zeros,
        "nan": nan,
        "uninit": uninit,
        "dictionary": stored.dictionary,
        "vl_blocks": stored.vl_blocks,
        "unreadable": stored.unreadable,
        "codecs": stored.codecs(),
        "unused": stored.unused.map(|unused| json!({ "holes": unused.holes, "bytes": unused.bytes })),
    }))
}

fn array(facts: &Facts<'_>) -> Option<Value> {
    let (kind, array) = facts.array.as_ref()?;
    Some(match array {
        Err(error) => json!({ "kind": kind.name(), "error": error }),
        Ok(array) => json!({
            "kind": kind.name(),
            "version": array.version,
            "ndim": array.shape.len(),
            "shape": array.shape,
            "chunkshape": array.chunkshape,
            "blockshape": array.blockshape,
            "dtype_format": array.dtype.as_ref().map(|dtype| dtype.format),
            "dtype": array.dtype.as_ref().map(|dtype| &dtype.text),
        }),
    })
}
