// Products of int4 weights with rows of int8.
#include "product_functions.h"
#include "quantized_functions.h"

const ProductFunctions int4_product = quantized_functions<Int4Weight>();
