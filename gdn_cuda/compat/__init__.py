"""The functions and modules of gdn_cuda under the names of other libraries: only the import changes."""
