// Products of int8 weights with rows of int8.
#include "product_functions.h"
#include "quantized_functions.h"

const ProductFunctions int8_product = quantized_functions<Int8Weight>();
