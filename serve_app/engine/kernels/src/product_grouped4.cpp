// Products of codes of four bits, with scales and zeros for groups of inputs.
#include "product_functions.h"
#include "quantized_functions.h"

const ProductFunctions grouped4_product = quantized_functions<GroupedWeight<4>>();
