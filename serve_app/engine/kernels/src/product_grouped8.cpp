// Products of codes of eight bits, with scales and zeros for groups of inputs.
#include "product_functions.h"
#include "quantized_functions.h"

const ProductFunctions grouped8_product = quantized_functions<GroupedWeight<8>>();
