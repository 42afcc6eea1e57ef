"""KServe v2's inference protocol as such: tensors, messages and their forms on HTTP. No models here."""
